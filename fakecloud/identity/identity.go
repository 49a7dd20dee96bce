// Package identity says what the dialects of other clouds call a machine of this one. It is
// the only place that does: the API shows it, dialects answer with it, and both find a
// machine by it. It knows numbers and texts alone. Begin with Of and Parse.
package identity

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// schemes are the beginnings of provider IDs, by dialect; the serial number follows.
var schemes = map[string]string{
	// hcloud-cloud-controller-manager, internal/providerid.
	"hcloud": "hcloud://",
}

// Dialects are the names of the dialects, sorted.
func Dialects() []string { return slices.Sorted(maps.Keys(schemes)) }

// Of gives the provider IDs of the machine with a serial number, by dialect.
func Of(serial int64) map[string]string {
	all := make(map[string]string, len(schemes))
	for dialect, scheme := range schemes {
		all[dialect] = scheme + strconv.FormatInt(serial, 10)
	}
	return all
}

// Parse gives the dialect and the serial number of a provider ID. It is not ok if no dialect
// makes such a provider ID.
func Parse(providerID string) (dialect string, serial int64, ok bool) {
	for dialect, scheme := range schemes {
		number, found := strings.CutPrefix(providerID, scheme)
		serial, err := strconv.ParseInt(number, 10, 64)
		if found && err == nil && serial > 0 && Of(serial)[dialect] == providerID {
			return dialect, serial, true
		}
	}
	return "", 0, false
}
