"""How clients make their updates smaller before they send them: plug-ins, one a file."""
