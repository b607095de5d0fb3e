"""An additional command, `toy greet`."""

import argparse


def option_parser():
    parser = argparse.ArgumentParser("toy greet")
    parser.add_argument("--greeting", default="hello")
    return parser


def greet(args):
    """Print a greeting."""
    print(option_parser().parse_args(args).greeting)
    return 0
