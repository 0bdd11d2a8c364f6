"""The door for LeRobot's asynchronous inference client (gRPC), without LeRobot and without trusting a single pickle."""
