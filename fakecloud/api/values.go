package api

import "slices"

// Roles are all of them, the least first.
var Roles = []Role{RoleViewer, RoleEditor, RoleAdmin}

// Allows tells whether who has this role may do what needs that one.
func (r Role) Allows(need Role) bool {
	return r.Valid() && slices.Index(Roles, r) >= slices.Index(Roles, need)
}

// ValueOf is the value of an optional field, or the zero value if it is not there.
func ValueOf[T any](field *T) (value T) {
	if field != nil {
		value = *field
	}
	return value
}
