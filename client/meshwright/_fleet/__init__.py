"""The fleet's private rooms: where its hosts are, how one is asked, what came of it. Public face: meshwright.fleet."""
