"""What an attention computes, chosen by plans and carried out by backends."""
