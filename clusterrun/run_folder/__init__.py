"""The files of a run, each with its writer beside its readers. Standard library only: jobs and commands import it."""
