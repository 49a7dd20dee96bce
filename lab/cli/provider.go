package cli

// printSummaryWithoutProvider says what there is to see in a cluster without an
// external cloud provider.
func printSummaryWithoutProvider(p func(format string, args ...any), self, name string) {
	other := "full"
	if name == other {
		other = "other"
	}
	p("  What to see   no taints, no zones, no provider IDs; pods run, service web stays pending for ever")
	p("  Beside it     %s up --name %s      # one that waits for a CCM, and has it", self, other)
	p("  Compare       %s compare %s %s", self, name, other)
}
