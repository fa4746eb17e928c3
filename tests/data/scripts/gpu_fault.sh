#!/bin/sh
# A rank whose driver reports a GPU that is gone, in the kernel's words, and that then fails.
echo "[ 4211.7] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus." >&2
exit 1
