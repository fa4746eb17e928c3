"""What accelerate's launch tells a script; without FSDP, also what its Accelerator makes of it."""

import os
import sys

shown = f"precision {os.environ.get('ACCELERATE_MIXED_PRECISION')} fsdp {os.environ.get('ACCELERATE_USE_FSDP')}"
if not os.environ.get("ACCELERATE_USE_FSDP"):
    from accelerate import Accelerator

    accelerator = Accelerator()
    shown += f" accelerator {accelerator.mixed_precision} of {accelerator.num_processes}"
sys.stdout.write(f"{shown}\n")
