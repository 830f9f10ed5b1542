"""What authors run on labs: the contract, and mutants that a test has to notice."""
