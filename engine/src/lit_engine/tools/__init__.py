"""Commands that work on run directories. Nothing else imports them."""
