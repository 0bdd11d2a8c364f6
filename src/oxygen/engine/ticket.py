"""The handles' front door; they live in the tickets room."""

from oxygen.tickets.ticket import TextHandle, Ticket

__all__ = ["TextHandle", "Ticket"]
