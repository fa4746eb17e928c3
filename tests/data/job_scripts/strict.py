import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
print(parser.parse_args())
