#!/bin/sh
# Shows the environment of a rank.
env
