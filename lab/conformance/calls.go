package conformance

// Calls of the cloud's API, counted by what they are about.

// Calls is how many calls of the cloud's API were made.
type Calls struct {
	Count
	// Of are those of them that are about each thing. What is about no thing that
	// the suite knows, as a look at the account, is among none.
	Of map[Thing]Count
}

// Count of calls.
type Count struct {
	// Reads change nothing; Writes create, change or delete something.
	Reads, Writes int
}

// Thing is what a call of the cloud's API is about.
type Thing string

// What calls are about.
const (
	Instances Thing = "instances"
	Balancers Thing = "balancers"
	Routes    Thing = "routes"
)
