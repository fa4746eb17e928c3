"""A script with accelerate's PartialState, which on CPUs counts one process: no word of clusterrun in it."""

from accelerate import PartialState

state = PartialState()
print(f"process {state.process_index} of {state.num_processes}", flush=True)
