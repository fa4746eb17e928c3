#!/bin/bash
#SBATCH --nodes=1 --ntasks=1
#SBATCH --gpus=h100-96
python3 train.py
