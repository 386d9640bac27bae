"""The page of the controller: who may look, what is served, and when it is made anew."""
