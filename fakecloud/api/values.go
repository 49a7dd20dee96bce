package api

// ValueOf is the value of an optional field, or the zero value if it is not there.
func ValueOf[T any](field *T) (value T) {
	if field != nil {
		value = *field
	}
	return value
}
