"""Where elements lie: index expressions over axes, what is known of their ranges, strided views, orders in memory."""
