package cloud

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// Code tells refusals apart. Codes are stable, so that programs can decide by them.
type Code string

// Why the cloud refuses. The names are those of the API.
const (
	InvalidRequest       Code = "invalid-request"
	UnknownZone          Code = "unknown-zone"
	UnknownInstance      Code = "unknown-instance"
	UnknownNetwork       Code = "unknown-network"
	UnknownCertificate   Code = "unknown-certificate"
	UnknownAddress       Code = "unknown-address"
	ListenerConflict     Code = "listener-conflict"
	Unauthenticated      Code = "unauthenticated"
	Forbidden            Code = "forbidden"
	NotFound             Code = "not-found"
	NameTaken            Code = "name-taken"
	WrongState           Code = "wrong-state"
	InUse                Code = "in-use"
	Protected            Code = "protected"
	QuotaExceeded        Code = "quota-exceeded"
	AddressPoolExhausted Code = "address-pool-exhausted"
	AddressInUse         Code = "address-in-use"
	RouteConflict        Code = "route-conflict"
	NetworkConflict      Code = "network-conflict"
	VirtualClock         Code = "virtual-clock"
	SnapshotUnusable     Code = "snapshot-unusable"
	TooManyFaults        Code = "too-many-faults"
	EventsExpired        Code = "events-expired"
	PreconditionFailed   Code = "precondition-failed"
	IdempotencyKeyReused Code = "idempotency-key-reused"
	Unavailable          Code = "unavailable"
	ZoneUnavailable      Code = "zone-unavailable"
)

// Error is a refusal. Nothing was changed.
type Error struct {
	Code Code
	// Message is a sentence a person can act on.
	Message string
	// Fields are the offending ones of the request.
	Fields []Field
}

// Field is one offending field, by its path in the request, and why.
type Field struct{ Path, Message string }

func (e *Error) Error() string { return e.Message }

func refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// refuseIfFull makes a refusal of an error whose cause is a full disk, and passes on any other.
func refuseIfFull(err error) error {
	if errors.Is(err, store.ErrFull) {
		return refuse(
			Unavailable, "nothing was changed: the disk that holds the cloud's data is full; make room there and try again",
		)
	}
	return err
}

// withField adds an offending field to a refusal.
func (e *Error) withField(path, format string, args ...any) *Error {
	e.Fields = append(e.Fields, Field{Path: path, Message: fmt.Sprintf(format, args...)})
	return e
}

// prefixFields puts a prefix before the paths of a refusal's fields. The error may be nil.
func prefixFields(prefix string, err error) error {
	var refused *Error
	if errors.As(err, &refused) {
		for i := range refused.Fields {
			refused.Fields[i].Path = prefix + refused.Fields[i].Path
		}
	}
	return err
}

// joinRefusals makes one refusal of several, with the code of the first. An error that is
// no refusal takes precedence.
func joinRefusals(errs ...error) error {
	var all *Error
	for _, err := range errs {
		var refused *Error
		switch {
		case err == nil:
			continue
		case !errors.As(err, &refused):
			return err
		case all == nil:
			all = &Error{Code: refused.Code}
		}
		all.Message = strings.TrimPrefix(all.Message+"; "+refused.Message, "; ")
		all.Fields = append(all.Fields, refused.Fields...)
	}
	if all == nil {
		return nil
	}
	return all
}
