"""``python -m gpuguide`` is the command ``gpuguide``."""

from gpuguide.cli import main

if __name__ == "__main__":
    main()
