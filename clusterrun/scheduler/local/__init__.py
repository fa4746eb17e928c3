"""The local scheduler: jobs as processes of this machine."""
