"""Reports for people: tables on the terminal. They show what a report holds and decide nothing."""
