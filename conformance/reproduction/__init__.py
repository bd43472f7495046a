"""What a failure leaves behind: a script, and a file to replay."""
