"""Bytes as srun writes them, and what a reader made of them."""

from functools import partial

from clusterrun.logs import reading
from clusterrun.logs.files import Source
from clusterrun.logs.follow import FollowedFile, Timing, follow_files
from clusterrun.logs.request import LineFilter, LogRequest


def pieces(rank, line, world_size):
    """What srun writes for one line of a task (``_task_build_message``, ``write_labelled_message``)."""
    label = b"%*d: " % (len(str(world_size - 1)), rank)
    whole = line + b"\n"
    chunks = [whole[i : i + 1024] for i in range(0, len(whole), 1024)]
    return [label + chunk.removesuffix(b"\n") + b"\n" for chunk in chunks]


def texts(lines):
    return [line.text for line in lines]


def read_lines(paths, *, stream="both", ranks=None, tail=None, grep=None, world_size=None, ticks=()):
    """The lines of two files, by keywords."""
    source = Source(*paths, world_size=world_size, ranks=None if ranks is None else frozenset(ranks), ticks=ticks)
    return reading.read_lines(source, LogRequest(LineFilter(stream, grep), tail=tail))


def follow(paths, *, stop, stream="both", ranks=None, tail=None, grep=None, world_size=None, **timing):
    """The lines of two files as they grow, by keywords."""
    source = Source(*paths, world_size=world_size, ranks=None if ranks is None else frozenset(ranks))
    line_filter = LineFilter(stream, grep)
    files = []
    for name, _ in source.files(stream):
        new_reader = partial(reading.line_reader, name, source, line_filter)
        begin = None if tail is None else partial(_last, tail, new_reader)
        files.append(FollowedFile(source, name, new_reader, begin))
    return follow_files(files, stop=stop, timing=Timing(**timing))


def _last(tail, new_reader, file, end):
    """Begin with the last lines; the rest of the file is new."""
    start, count = reading.find_last(file, 0, end, tail, new_reader, finish=False)
    reader = new_reader()
    reading.read_before(file, start, reader.feed)
    lines = [line for block in file.blocks(start, end) for line in reader.feed(block)]
    return end, lines[max(0, count - tail) :], reader
