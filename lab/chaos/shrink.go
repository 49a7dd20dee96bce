package main

import "slices"

// shrink returns fewest of the actions with which fails still returns true, as far as it gets before fails
// returns an error: its time is over. It is delta debugging (Zeller and Hildebrandt, 2002): halves, quarters
// and so on are left out one after the other.
func shrink(actions []Action, fails func([]Action) (bool, error)) []Action {
	for parts := 2; len(actions) > 1 && parts <= 2*len(actions); {
		size := (len(actions) + parts - 1) / parts
		reduced := false
		for at := 0; at < len(actions); at += size {
			rest := slices.Concat(actions[:at], actions[min(at+size, len(actions)):])
			failed, err := fails(rest)
			if err != nil {
				return actions
			}
			if failed {
				actions, reduced = rest, true
				break
			}
		}
		switch {
		case reduced:
			parts = max(parts-1, 2)
		case size == 1:
			return actions
		default:
			parts *= 2
		}
	}
	return actions
}
