package conformance

import "github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"

// Calls of the cloud's API, counted by what they are about.

// Calls is how many calls of the cloud's API were made.
type Calls struct {
	Count
	// Of are those of them that are about each thing. What is about no thing that
	// the suite knows, as a look at the account, is among none.
	Of map[Thing]Count `json:"things,omitempty"`
}

// Count of calls.
type Count struct {
	// Reads change nothing; Writes create, change or delete something.
	Reads  int `json:"reads"`
	Writes int `json:"writes"`
}

// What calls are about.
const (
	Instances = protocol.Instances
	Balancers = protocol.Balancers
	Routes    = protocol.Routes
)
