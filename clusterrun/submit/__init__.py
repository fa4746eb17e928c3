"""From arguments to a submitted job: the request, the plan, the submission protocol, and its recovery."""
