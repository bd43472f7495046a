"""What a test can ask about the record of its rank: `ddp.collectives`."""
