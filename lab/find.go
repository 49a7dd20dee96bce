package lab

import (
	"cmp"
	"path/filepath"
	"slices"

	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Found is a lab of this user's, or what is left of one.
type Found struct {
	Name, Dir string
	// Leftover says that the lab's folder was deleted: there are only processes, and what
	// they may have made of the folder anew.
	Leftover bool
}

// Find lists the labs in this user's folder of labs, and those of which only processes are
// left, wherever their folders were, by name.
func Find() ([]Found, error) {
	names, err := state.List()
	if err != nil {
		return nil, err
	}
	var all []Found
	for _, name := range names {
		dir, err := state.Dir(name)
		if err != nil {
			return nil, err
		}
		all = append(all, Found{Name: name, Dir: dir})
	}
	processes, err := process.All()
	for _, p := range processes {
		if p.BelongsToUser() && state.Deleted(p.Lab) {
			all = append(all, Found{Name: filepath.Base(p.Lab), Dir: p.Lab, Leftover: true})
		}
	}
	slices.SortFunc(all, func(a, b Found) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dir, b.Dir)) })
	return slices.Compact(all), err
}
