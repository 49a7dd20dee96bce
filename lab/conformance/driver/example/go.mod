// An example of a driver for the conformance suite. It shares no code with this repository, and
// requires no other module: all that it knows is the protocol, and the API of the cloud.
module github.com/ccmlab/ccmlab/lab/conformance/driver/example

go 1.26.0
