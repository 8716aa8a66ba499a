"""Every tutorial as something to take away: notebooks, scripts, the library's wheel, and one zip of all."""
