from redrive.testing.plugin import redrive_app, redrive_kit

__all__ = ["redrive_app", "redrive_kit"]
