// Package identity says what the dialects of other clouds call a machine of this one. It is
// the only place that does: the API shows it, dialects answer with it, and both find a
// machine by it. It knows numbers and texts alone. Begin with Of and Parse.
package identity

import (
	"crypto/md5" //nolint:gosec // Fingerprints are names, by definition MD5; nothing rests on them.
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// form is how a dialect writes a provider ID: after the prefix comes the machine's ID.
type form struct {
	prefix string
	write  func(serial int64) string
	read   func(id string) (serial int64, ok bool)
}

// forms are those of the dialects.
var forms = map[string]form{
	// k8ssdk, util.go; a server's ID is "srv-" and some letters and digits.
	"brightbox": {"brightbox://srv-", Code, ReadCode},
	// hcloud-cloud-controller-manager, internal/providerid.
	"hcloud": {"hcloud://", writeNumber, readNumber},
	// oci-cloud-controller-manager, pkg/cloudprovider/providers/oci/util.go: the bare OCID of the instance.
	"oci": {OCID("instance"), Code, ReadCode},
	// oxide-cloud-controller-manager, internal/provider.
	"oxide": {"oxide://", func(serial int64) string { return UUID(serial).String() }, readUUID},
}

// Dialects are the names of the dialects, sorted.
func Dialects() []string { return slices.Sorted(maps.Keys(forms)) }

// Of gives the provider IDs of the machine with a serial number, by dialect.
func Of(serial int64) map[string]string {
	all := make(map[string]string, len(forms))
	for dialect, f := range forms {
		all[dialect] = f.prefix + f.write(serial)
	}
	return all
}

// Parse gives the dialect and the serial number of a provider ID. It is not ok if no dialect
// makes such a provider ID.
func Parse(providerID string) (dialect string, serial int64, ok bool) {
	for dialect, f := range forms {
		id, found := strings.CutPrefix(providerID, f.prefix)
		serial, ok := f.read(id)
		if found && ok && serial > 0 && f.write(serial) == id {
			return dialect, serial, true
		}
	}
	return "", 0, false
}

// codeLength is how long a code is at least.
const codeLength = 5

// Code gives the code of whatever has a serial number: letters and digits, five of them or more. It is the
// same for ever.
func Code(serial int64) string {
	digits := strconv.FormatInt(serial, 36)
	return strings.Repeat("0", max(codeLength-len(digits), 0)) + digits
}

// ReadCode gives the serial number that a code has; it is not ok if Code gives no such one.
func ReadCode(code string) (serial int64, ok bool) {
	serial, err := strconv.ParseInt(code, 36, 64)
	return serial, err == nil && serial > 0 && Code(serial) == code
}

// OCID gives what the OCIDs of a type of Oracle's resources begin with; a code comes after it. This cloud's realm is
// fc1, and its region has the key neb.
func OCID(ocidType string) string { return "ocid1." + ocidType + ".fc1.neb." }

// Fingerprint names a public key as Oracle's documentation does: the MD5 of its DER-encoded SubjectPublicKeyInfo, in
// lower-case hexadecimal digits with colons.
func Fingerprint(der []byte) string {
	sum := md5.Sum(der) //nolint:gosec // A name.
	return strings.ReplaceAll(fmt.Sprintf("% x", sum), " ", ":")
}

func writeNumber(serial int64) string { return strconv.FormatInt(serial, 10) }

func readNumber(id string) (serial int64, ok bool) {
	serial, err := strconv.ParseInt(id, 10, 64)
	return serial, err == nil
}

// uuidBase is a UUID of version 8, which is for forms of one's own (RFC 9562, section 5.8). The last eight
// bytes have the variant in their first two bits, and a serial number in the others.
var uuidBase = uuid.UUID{'f', 'a', 'k', 'e', 'c', 'l', 0x80, 0, 0x80}

// UUID gives the UUID of whatever has a serial number. It is the same for ever.
func UUID(serial int64) uuid.UUID {
	u := uuidBase
	binary.BigEndian.PutUint64(u[8:], binary.BigEndian.Uint64(u[8:])|uint64(serial)&(1<<62-1))
	return u
}

// SerialOf gives the serial number that a UUID has; it is not ok if UUID gives no such one.
func SerialOf(u uuid.UUID) (serial int64, ok bool) {
	serial = int64(binary.BigEndian.Uint64(u[8:]) & (1<<62 - 1)) //nolint:gosec // 62 bits
	return serial, UUID(serial) == u
}

func readUUID(id string) (serial int64, ok bool) {
	u, err := uuid.Parse(id)
	if err != nil {
		return 0, false
	}
	return SerialOf(u)
}

// documentation is the range of IPv6 addresses that lead nowhere (RFC 3849).
var documentation = netip.MustParseAddr("2001:db8::")

// IPv6Of makes up an IPv6 address beside an IPv4 one, for dialects whose clouds have both. It leads nowhere, and
// is empty for what is no IPv4 address.
func IPv6Of(ipv4 string) string {
	a, err := netip.ParseAddr(ipv4)
	if err != nil || !a.Is4() {
		return ""
	}
	six, four := documentation.As16(), a.As4()
	copy(six[12:], four[:])
	return netip.AddrFrom16(six).String()
}
