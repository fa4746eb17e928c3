#!/bin/sh
# A rank that works for ten minutes unless somebody ends it.
echo awake
exec sleep 600
