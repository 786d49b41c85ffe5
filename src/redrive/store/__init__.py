"""Where jobs rest. Empty, so that importing the port loads no SQL."""
