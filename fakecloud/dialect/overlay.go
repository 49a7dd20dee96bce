package dialect

import "reflect"

// Overlay puts the fields of a change that are set into has. The others stay.
func Overlay[T any](has *T, change T) {
	overlayFields(reflect.ValueOf(has).Elem(), reflect.ValueOf(change))
}

func overlayFields(has, change reflect.Value) {
	for i := range change.NumField() {
		switch field := change.Field(i); {
		case change.Type().Field(i).Anonymous:
			overlayFields(has.Field(i), field)
		case !field.IsZero():
			has.Field(i).Set(field)
		}
	}
}
