package cli

import (
	"net"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/classroom"
)

// newClassroomPage returns the command `lab classroom page`.
func newClassroomPage() *cobra.Command {
	var (
		rooms classroom.Rooms
		from  []string
	)
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Show the seats of other machines' classrooms, or of pods, on one page",
		Long: `page asks the pages of other classrooms how far their seats are, every other second, and
shows them all as one. It stays until it is told to end (Ctrl-C, SIGTERM). A room that does
not answer stays on the page, as it was, with the reason.

It is reached from this machine alone unless --listen says otherwise, and has no password.`,
		Example: `  lab classroom page --from http://10.0.0.11:8400/ --from http://10.0.0.12:8400/ --port 8401
  lab classroom page --from-service seat:8400 --listen 0.0.0.0   # manifests/classroom`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(from) == 0 && rooms.Service == "" {
				return usagef("whose seats? want --from URL, or --from-service HOST:PORT")
			}
			for _, text := range from {
				u, err := url.Parse(text)
				if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
					return usagef("--from %q: want the URL of a classroom's page, such as http://10.0.0.11:8400/", text)
				}
				rooms.From = append(rooms.From, u)
			}
			if host, port, err := net.SplitHostPort(rooms.Service); rooms.Service != "" && (err != nil || host == "" ||
				port == "") {
				return usagef("--from-service %q: want HOST:PORT, such as seat:8400", rooms.Service)
			}
			return rooms.Serve(cmd.Context())
		},
	}
	cmd.Flags().StringSliceVar(&from, "from", nil, "the `URL` of a classroom's page; can be repeated")
	cmd.Flags().StringVar(
		&rooms.Service, "from-service", "",
		"the `HOST:PORT` of pages at each address that the name has, which is asked for anew each time: a headless Service, say",
	)
	cmd.Flags().StringVar(
		&rooms.Listen, "listen", "127.0.0.1",
		"the `ADDRESS` at which the page is reached: 0.0.0.0 is every one of this machine",
	)
	cmd.Flags().IntVar(&rooms.Port, "port", 8400, "the page's port")
	return cmd
}
