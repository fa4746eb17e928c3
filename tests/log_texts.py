"""Bytes as srun writes them, and what a reader made of them."""


def pieces(rank, line, world_size):
    """What srun writes for one line of a task (``_task_build_message``, ``write_labelled_message``)."""
    label = b"%*d: " % (len(str(world_size - 1)), rank)
    whole = line + b"\n"
    chunks = [whole[i : i + 1024] for i in range(0, len(whole), 1024)]
    return [label + chunk.removesuffix(b"\n") + b"\n" for chunk in chunks]


def texts(lines):
    return [line.text for line in lines]
