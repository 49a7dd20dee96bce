// Package dns gives the addresses of load balancers names, and answers queries for them. A name is made of the
// address alone, so that nothing is stored. Begin with NamesOf.
package dns

import (
	"fmt"
	"net/netip"
	"strings"
)

// Domain is what all names end with. Nobody else has it: RFC 6761 keeps "test" for tests.
const Domain = "fakecloud.test"

// NamesOf gives the two names of an IPv4 address in a region: with the address as a hexadecimal number, and with
// its parts. Both lead to the address, and the address to the second.
func NamesOf(region string, a netip.Addr) (byNumber, byParts string) {
	b := a.As4()
	zone := "." + region + "." + Domain
	return fmt.Sprintf("cip-%02x%02x%02x%02x%s", b[0], b[1], b[2], b[3], zone),
		"cip-" + strings.ReplaceAll(a.String(), ".", "-") + zone
}
