package local

import "maps"

// Slots are the first and the last X of 127.X.0.0/16 that a lab can have.
func Slots() (first, last int) { return firstSlot, lastSlot }

// PreferredPorts are the ports of a new lab by component. A port that is held on
// 0.0.0.0 is replaced.
func PreferredPorts() map[string]int {
	ports := maps.Clone(preferredPorts)
	delete(ports, PortLock)
	return ports
}

// LockPorts are the ports of which every lab needs one, the same in all slots.
func LockPorts() []int { return append([]int(nil), lockPorts...) }
