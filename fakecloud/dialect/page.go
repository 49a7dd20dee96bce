package dialect

import (
	"cmp"
	"strconv"
)

// Page gives the page of a list that begins at a token, which is empty for the first one, and the token of the next
// page, which is empty after the last one. A page has limit items at most, or all if limit is 0.
func Page[T any](all []T, token string, limit int) (page []T, next string, err error) {
	from, err := strconv.Atoi(cmp.Or(token, "0"))
	if err != nil || from < 0 {
		return nil, "", Invalid("page", "%q is no page of this list", token)
	}
	all = all[min(from, len(all)):]
	if limit < 1 || len(all) <= limit {
		return all, "", nil
	}
	return all[:limit], strconv.Itoa(from + limit), nil
}
