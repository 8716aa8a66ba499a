"""What links carry: copies, peers, collectives, and computing while bytes move."""
