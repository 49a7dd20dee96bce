package cli

// closingWithoutProvider says what there is to see in a cluster without an
// external cloud provider.
func closingWithoutProvider(p func(format string, args ...any), self, name string) {
	p("  What to see   no taints, no zones, no provider IDs; pods run, service web stays pending for ever")
	p("  Beside it     %s up --name full && %s compare %s full   # one that waits for a CCM, and has it", self, self, name)
}
