package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// maxUnread bounds how many different fields are counted: their names come from strangers.
const maxUnread = 1000

// unreadCounts counts the fields and query parameters that clients sent and nobody read: what
// they may count on and the imitation does not do.
type unreadCounts struct {
	mu     sync.Mutex
	counts map[api.UnreadField]int64 // by the field without its count
}

func (u *unreadCounts) add(c Call, fields []string) {
	if len(fields) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.counts == nil {
		u.counts = map[api.UnreadField]int64{}
	}
	for _, f := range fields {
		key := api.UnreadField{Call: c.Method + " " + c.Path, Field: f}
		if _, known := u.counts[key]; known || len(u.counts) < maxUnread {
			u.counts[key]++
		}
	}
}

func (u *unreadCounts) list() []api.UnreadField {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]api.UnreadField, 0, len(u.counts))
	for f, n := range u.counts {
		f.Count = n
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b api.UnreadField) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Call, b.Call), cmp.Compare(a.Field, b.Field))
	})
	return all
}

// findUnread finds the fields of a JSON text that decoding it into decoded has dropped: decoded
// again, they are not there. Fields of decoded must not be left out when they are empty but sent,
// so pointers and slices have omitempty, and nothing else.
func findUnread(raw []byte, decoded any) ([]string, error) {
	kept, err := json.Marshal(decoded)
	if err != nil {
		return nil, err
	}
	var sent, read any
	if err := json.Unmarshal(raw, &sent); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(kept, &read); err != nil {
		return nil, err
	}
	var unread []string
	compareRead("", sent, read, &unread)
	slices.Sort(unread)
	return slices.Compact(unread), nil
}

// compareRead appends the paths of what is sent and not read. Items of a list have one path.
func compareRead(path string, sent, read any, unread *[]string) {
	switch sent := sent.(type) {
	case map[string]any:
		read, _ := read.(map[string]any)
		for name, value := range sent {
			at := name
			if path != "" {
				at = path + "." + name
			}
			kept, has := read[name]
			switch {
			case has:
				compareRead(at, value, kept, unread)
			case value != nil: // A null says as much as nothing does.
				*unread = append(*unread, at)
			}
		}
	case []any:
		read, _ := read.([]any)
		for i, value := range sent {
			if i < len(read) {
				compareRead(path, value, read[i], unread)
			} else {
				*unread = append(*unread, fmt.Sprint(path))
			}
		}
	}
}
