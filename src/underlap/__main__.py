"""`python -m underlap`: the command line where the script is not on the path."""

from underlap.cli import main

if __name__ == "__main__":
    main(prog_name="underlap")
