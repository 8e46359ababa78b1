"""Running a bundle's verifiers, apart from the server, and turning what they return into scores."""
