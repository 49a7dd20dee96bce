package annotations

// Values that may differ by port: "1000,443=200,53/udp=50".

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// PerPort are values by port ("443"), by port and protocol ("53/udp"), and one for all other ports ("").
type PerPort[T any] map[string]T

var portPattern = regexp.MustCompile(`^[1-9][0-9]{0,4}(/(tcp|udp))?$`)

func portKeys(l api.Listener) []string {
	port := strconv.Itoa(l.Port)
	return []string{port + "/" + string(l.Protocol), port}
}

// For is the listener's value. A value for its port and protocol precedes one for its port alone.
func (p PerPort[T]) For(l api.Listener) T {
	for _, key := range portKeys(l) {
		if value, ok := p[key]; ok {
			return value
		}
	}
	return p[""]
}

// UnusedPorts are the ports with a value that none of the listeners has.
func (p PerPort[T]) UnusedPorts(listeners []api.Listener) []string {
	unused := maps.Clone(p)
	delete(unused, "")
	for _, l := range listeners {
		for _, key := range portKeys(l) {
			delete(unused, key)
		}
	}
	return slices.Sorted(maps.Keys(unused))
}

// parsePerPort reads a value for all ports, values by port, or both. parse reads one value.
func parsePerPort[T any](to *PerPort[T], s string, parse func(*T, string) bool) bool {
	*to = PerPort[T]{}
	for item := range strings.SplitSeq(s, ",") {
		port, text, isPort := strings.Cut(strings.TrimSpace(item), "=")
		if !isPort {
			port, text = "", port
		}
		_, twice := (*to)[port]
		var value T
		if twice || isPort && !portPattern.MatchString(port) || !parse(&value, text) {
			return false
		}
		(*to)[port] = value
	}
	return true
}
