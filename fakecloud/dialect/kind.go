package dialect

import (
	"cmp"
	"context"
	"crypto/rand"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// Kind is a kind of resources: what a dialect calls it, what it is in this cloud, and how its IDs hold serial
// numbers. Read is not ok for what Write gives for no number.
type Kind struct {
	Name   string
	Native cloud.Resource
	Write  func(serial int64) string
	Read   func(id string) (serial int64, ok bool)
}

// CodeKind is a kind whose IDs are a prefix and a code (see identity.Code).
func CodeKind(name string, native cloud.Resource, prefix string) Kind {
	return Kind{
		Name: name, Native: native,
		Write: func(serial int64) string { return prefix + identity.Code(serial) },
		Read: func(id string) (int64, bool) {
			code, ok := strings.CutPrefix(id, prefix)
			serial, valid := identity.ReadCode(code)
			return serial, ok && valid
		},
	}
}

// NotFound refuses a request for a resource of the kind that is not there.
func (k Kind) NotFound(id string) error { return NotFound("%s %q not found", k.Name, id) }

// Serial gives the serial number that an ID holds. What is no ID of the kind is not found.
func (k Kind) Serial(id string) (int64, error) {
	serial, ok := k.Read(id)
	if !ok {
		return 0, k.NotFound(id)
	}
	return serial, nil
}

// NativeID gives the native ID of the caller's resource of the kind that has an ID.
func (k Kind) NativeID(ctx context.Context, r *Request, id string) (string, error) {
	serial, err := k.Serial(id)
	if err != nil {
		return "", err
	}
	native, err := r.Cloud.ResourceID(ctx, r.Project, k.Native, serial)
	if err == nil && native == "" {
		err = k.NotFound(id)
	}
	return native, err
}

// Find reads the caller's resource of the kind that has an ID by get, which is a native call.
func Find[T any](
	ctx context.Context,
	r *Request,
	k Kind,
	id string,
	get func(ctx context.Context, id string) (*T, error),
) (*T, error) {
	native, err := k.NativeID(ctx, r, id)
	if err != nil {
		return nil, err
	}
	return get(ctx, native)
}

// TagName is the tag in which a resource has its name in dialects of clouds where names need not be unique.
const TagName = "name"

// NameOf gives the name of a resource in such a dialect: its tag's, or the native one of a resource that was
// made otherwise.
func NameOf(native string, tags map[string]string) string { return cmp.Or(tags[TagName], native) }

// NewName makes a native name, which is unique, for a resource whose name is a tag.
func NewName(prefix string) string { return prefix + strings.ToLower(rand.Text()) }

// SizeOf gives the size of an instance type, and its number. A type that is none has no size.
func SizeOf(t api.InstanceType) (number int, size api.InstanceSize) {
	for i, size := range cloud.InstanceSizes {
		if size.Name == t {
			return i + 1, size
		}
	}
	return 0, size
}
