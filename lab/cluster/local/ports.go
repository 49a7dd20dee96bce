package local

import "maps"

// Slots are the first and the last X of 127.X.0.0/16 that a lab may have.
func Slots() (first, last int) { return firstSlot, lastSlot }

// PreferredPorts are the ports that a new lab takes, by component, unless
// somebody holds one on 0.0.0.0.
func PreferredPorts() map[string]int {
	ports := maps.Clone(preferredPorts)
	delete(ports, PortLock)
	return ports
}

// LockPorts are those of which every lab needs one, the same in all slots.
func LockPorts() []int { return append([]int(nil), lockPorts...) }
